// refused: convert|conversion|no viable
#include <fabric/types.h>

#ifdef FABRIC_MISUSE
fabric::PeerId peer = 7;
#else
fabric::PeerId peer{7, 1};
#endif
