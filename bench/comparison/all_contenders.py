"""All who can be measured, by the names that the cases have for them."""

from comparison import contenders, verbs

ALL = contenders.ALL | verbs.ALL
