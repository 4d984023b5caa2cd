//go:build ignore

// What the Go example believes, for the conformance program: go build -o adapter adapter.go hold.go
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

var answers = make(chan string, 1000)

func say(word string, value any) {
	line := word
	if value != nil {
		text, _ := json.Marshal(value)
		line += " " + string(text)
	}
	fmt.Println(line)
}

func tell(event Event) {
	switch event.Event {
	case "acquired":
		tokens := []any{}
		for _, lock := range event.Locks {
			if lock.Token == "" {
				tokens = append(tokens, nil)
			} else {
				tokens = append(tokens, lock.Token)
			}
		}
		say("acquired", tokens)
	case "asked", "lost":
		say(event.Event, event.Why)
	case "error", "released":
		if event.Message == "" {
			say(event.Event, nil)
		} else {
			say(event.Event, event.Message)
		}
	case "failed":
		say("failed", map[string]any{"exit_code": event.ExitCode, "message": event.Message, "hint": event.Hint})
	case "waiting", "wanted", "checked", "ended":
		say(event.Event, nil)
	}
	switch event.Event {
	case "checked", "error", "lost", "released", "ended":
		answers <- event.Event
	}
}

func check(hold *Hold) {
	hold.Say(map[string]string{"do": "check"})
	for {
		select {
		case <-answers:
			return
		case <-time.After(10 * time.Millisecond):
			if !hold.Held() {
				say("lost", "time")
				return
			}
		}
	}
}

func main() {
	hold, err := Start(os.Args[1:], tell)
	if err != nil {
		panic(err)
	}
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		word, text, _ := strings.Cut(orders.Text(), " ")
		switch word {
		case "held?":
			if hold.Held() {
				say("held", nil)
			} else {
				say("not held", nil)
			}
		case "check":
			check(hold)
		case "refuse":
			hold.Say(map[string]string{"do": word, "why": text})
		default:
			hold.Say(map[string]string{"do": word})
		}
	}
	hold.Input.Close()
	<-hold.Ended
}
