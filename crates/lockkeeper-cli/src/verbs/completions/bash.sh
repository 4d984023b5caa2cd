# Completes the command line of lockkeeper in bash. Printed by: lockkeeper completions bash
_lockkeeper() {
    local i word typed glued='' line=${COMP_LINE:0:COMP_POINT}
    local -a words=()
    COMPREPLY=()
    # The command behind -- has its own completion.
    for ((i = 2; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- && ${COMP_WORDS[1]} == @(VERBS) ]] || continue
        if declare -F _command_offset >/dev/null; then
            _command_offset $((i + 1))
            return
        fi
        compopt -o filenames 2>/dev/null
        typed=f
        ((COMP_CWORD > i + 1)) || typed=c
        while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -"$typed" -- "$2")
        return
    done
    # bash divides words at = and : too; what it has taken off must not be in the answer.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        if ((i == 0)) || [[ $line == [[:space:]]* ]]; then
            line=${line#"${line%%[![:space:]]*}"}
            words+=('')
        fi
        glued=${words[${#words[@]} - 1]}
        word=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || word=$line
        line=${line#"$word"}
        words[${#words[@]} - 1]+=$word
    done
    [[ $word != +([=:]) ]] || glued+=$word
    typed=${words[${#words[@]} - 1]}
    while IFS= read -r word; do
        if [[ $word == *'<files>' ]]; then
            compopt -o filenames 2>/dev/null
            while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "${typed#"$glued"}")
        else
            COMPREPLY+=("${word#"$glued"}")
        fi
    done < <("$1" __complete bash "${words[@]}" 2>/dev/null)
    # A value follows.
    [[ ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != *[=:] ]] || compopt -o nospace 2>/dev/null
}
complete -F _lockkeeper lockkeeper
