#!/bin/sh
while read -r l; do
  e=${l#*episode\":}; e=${e%%[,\}]*}; n=${l#*turn\":}; n=${n%%[,\}]*}; t=${l#*text\":\"}; t=${t%%\"*}
  case $l in
    *ask\":\"tools*) echo '{"tools": []}';;
    *ask\":\"begin*) echo "{\"episode\": $e, \"message\": \"1=\"}";;
    *turn\":2*) sleep $1; echo "{\"episode\": $e, \"ended\": true, \"reward\": ${#t}, \"metrics\": {\"long\": ${#t}}}";;
    *) sleep $1; echo "{\"episode\": $e, \"messages\": [{\"content\": \"+$n 2=\"}], \"reward\": 0.25}";;
  esac
done
