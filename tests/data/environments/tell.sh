while read -r l; do
  e=${l#*episode\":}; e=${e%%[,\}]*}; n=${l#*turn\":}; n=${n%%[,\}]*}
  case $l in
    *ask\":\"tools*) echo '{"tools": []}';;
    *ask\":\"begin*) echo "{\"episode\": $e, \"message\": \"\"}";;
    *) if [ $n = 0 ] || [ $e = 6 ]; then printf '{"episode": %s, "messages": %s}\n' $e "$(sed -n "$((e + 1))p" said)"
       else echo "{\"episode\": $e, \"ended\": true}"; fi;;
  esac
done
