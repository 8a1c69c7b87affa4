#!/bin/sh
mkdir -p /logs/agent
printf '%s\n' '{answer}' >/logs/agent/answer.txt
