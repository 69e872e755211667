"""The parts of bench/compare: what is compared (cases), who with (contenders), how often (rounds),
what it means (report, draw), and the command around them."""
