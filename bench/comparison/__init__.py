"""The parts of bench/compare: the cases, the contenders, the interleaved rounds, report and
drawing, and the command line."""
