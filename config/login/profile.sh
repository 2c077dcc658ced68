# In /etc/profile.d: prints at login, in one line, the GPU memory that you hold, or nothing.
# It needs the permission to read the exporter's stream (group bailiff-exporter).
case $- in *i*)
    if command -v bailiff >/dev/null; then bailiff info --mine --brief; fi ;;
esac
