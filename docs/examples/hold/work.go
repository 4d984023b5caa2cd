// Works in steps while it holds a lock: go run work.go hold.go NAME [OPTION...], with the options of `lockkeeper hold`.
package main

import (
	"fmt"
	"os"
	"time"
)

func step(number int, token string) {
	fmt.Printf("step %d with token %s\n", number, token) // who stores it refuses a smaller token
	time.Sleep(100 * time.Millisecond)
}

func work() int {
	events := make(chan Event, 1000)
	hold, err := Start(os.Args[1:], func(event Event) { events <- event })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 70
	}
	defer hold.Input.Close() // releases the lock too
	event := next(events, "acquired", "failed", "released")
	if event.Event != "acquired" {
		fmt.Fprintf(os.Stderr, "%s\n%s\n", event.Message, event.Hint)
		return event.ExitCode
	}
	for number := 1; number <= 5; number++ {
		if !hold.Held() {
			fmt.Fprintln(os.Stderr, "the lock is lost")
			return 76
		}
		step(number, event.Locks[0].Token)
	}
	hold.Say(map[string]string{"do": "release"})
	if next(events, "released", "lost", "ended").Event == "lost" {
		return 76
	}
	return 0
}

func next(events chan Event, kinds ...string) Event {
	for event := range events {
		for _, kind := range kinds {
			if event.Event == kind {
				return event
			}
		}
	}
	panic("lockkeeper has ended without one of them")
}

func main() { os.Exit(work()) }
