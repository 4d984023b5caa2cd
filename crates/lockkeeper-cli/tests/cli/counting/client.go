// Counts under a lock, again and again: client SOCKET OPTION...
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
)

func main() {
	counter, err := net.Dial("unix", os.Args[1])
	if err != nil {
		panic(err)
	}
	lines := bufio.NewReader(counter)
	ask := func(words string) (value int) {
		fmt.Fprintln(counter, words)
		line, err := lines.ReadString('\n')
		if err != nil {
			panic(err)
		}
		fmt.Sscan(strings.TrimSpace(line), &value)
		return value
	}
	for {
		events := make(chan Event, 1000)
		hold, err := Start(os.Args[2:], func(event Event) { events <- event })
		if err != nil {
			panic(err)
		}
		for event := range events {
			if event.Event == "acquired" {
				if hold.Held() {
					ask(fmt.Sprintf("set %d %s go", ask("get")+1, event.Locks[0].Token))
				}
				hold.Say(map[string]string{"do": "release"})
			} else if event.Event != "hello" && event.Event != "waiting" && event.Event != "valid" {
				break
			}
		}
		<-hold.Ended
		hold.Input.Close()
	}
}
