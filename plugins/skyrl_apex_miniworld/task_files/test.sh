#!/bin/sh
# Grades the run; harbor reads /logs/verifier/reward.json.
exec "${APEX_PYTHON:-python3}" -I -S -B /tests/grade.py /tests
