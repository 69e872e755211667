// refused: private
#include <fabric/types.h>

#ifdef FABRIC_MISUSE
fabric::Key key(7);
#else
fabric::Key key = fabric::Key::from_wire(7);
#endif
