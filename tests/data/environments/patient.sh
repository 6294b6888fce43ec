#!/bin/sh
goes_on() { echo "{\"episode\": $1, \"messages\": [{\"content\": \"+1=\"}]}"; }
while read -r l; do
  e=${l#*episode\":}; e=${e%%[,\}]*}; t=${l#*text\":\"}; t=${t%%\"*}
  case $l in
    *ask\":\"tools*) echo '{"tools": []}';;
    *ask\":\"begin*) [ $e = 0 ] && begun=0 over=0 held=; begun=$((begun + 1)); echo "{\"episode\": $e, \"message\": \"\"}";;
    *turn\":0*) if [ $e = 0 ]; then held=yes; else goes_on $e; fi;;
    *) over=$((over + 1)); echo "{\"episode\": $e, \"ended\": true, \"reward\": ${#t}}";;
  esac
  if [ "$held" ] && { [ $1 = now ] || [ $over = $((begun - 1)) ]; }; then goes_on 0; held=; fi
done
