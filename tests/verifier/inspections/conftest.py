"""Fixtures that several tests of inspections share."""

from support.clean_bench import bench as bench
from support.clean_bench import honest as honest
