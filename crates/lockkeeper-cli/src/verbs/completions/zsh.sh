#compdef lockkeeper
# Completes the command line of lockkeeper in zsh. Printed by: lockkeeper completions zsh
_lockkeeper() {
    local line at=${words[(i)--]}
    local -a values
    # The command behind -- has its own completion.
    if (( at < CURRENT )) && [[ $words[2] == (VERBS) ]]; then
        shift $at words
        (( CURRENT -= at ))
        _normal
        return
    fi
    for line in ${(f)"$("${(Q)words[1]}" __complete zsh "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)"}; do
        if [[ $line == *'<files>'* ]]; then
            compset -P '*='
            _files
            return
        fi
        values+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    (( $#values )) && _describe -V lockkeeper values
}
if [[ $funcstack[1] == _lockkeeper ]]; then
    _lockkeeper "$@"
else
    compdef _lockkeeper lockkeeper
fi
