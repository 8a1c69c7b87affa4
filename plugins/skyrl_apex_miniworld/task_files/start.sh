#!/bin/sh
# Starts the world of a task: start.sh TASK_SLUG. Serves on port 8000 until it is ended.
exec "${APEX_PYTHON:-python3}" -I -B /app/server "$@"
