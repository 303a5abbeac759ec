"""The checks of an inspection, one file each: functions over `verifier.facts` that return findings.

A check fetches nothing, changes nothing and raises nothing on bad facts; so none can stop another.
"""
