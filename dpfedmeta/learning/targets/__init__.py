"""Kinds of targets, by the key `kind` of a task file, one file each: classes, or numbers to predict."""
