"""All contenders, by the names that the cases use."""

from comparison import contenders, verbs

ALL = contenders.ALL | verbs.ALL
