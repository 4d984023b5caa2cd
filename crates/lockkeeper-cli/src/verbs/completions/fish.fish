# Completes the command line of lockkeeper in fish. Printed by: lockkeeper completions fish
function __lockkeeper_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l typed (commandline --current-token --cut-at-cursor)
    # The command behind -- has its own completion.
    if set -l at (contains --index -- -- $words); and string match --quiet --regex '^(VERBS)$' -- $words[2]
        set --erase words[1..$at]
        complete --do-complete (string join ' ' -- (string escape -- $words) $typed)
        return
    end
    for line in ($words[1] __complete fish $words "$typed" 2>/dev/null)
        if string match --quiet '*<files>*' -- $line
            set -l before (string replace --regex '<files>.*' '' -- $line)
            set -l file (string sub --start (math (string length -- "$before") + 1) -- "$typed")
            printf '%s\n' $before(complete --do-complete "'' $file")
        else
            printf '%s\n' $line
        end
    end
end
complete --command lockkeeper --no-files --keep-order --arguments '(__lockkeeper_complete)'
