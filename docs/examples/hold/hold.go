// A client of the hold protocol: a lock that `lockkeeper hold` holds for this program. The clock is that of Linux.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"unsafe"
)

type Event struct {
	Event, Message, Hint string
	Why                  *string
	Protocol             int
	ExitCode             int                      `json:"exit_code"`
	ValidUntil           int64                    `json:"valid_until_ns"`
	Locks                []struct{ Token string } // empty for permits
}

type Hold struct {
	Input io.WriteCloser
	Ended chan struct{} // closed when lockkeeper has ended
	lock  sync.Mutex
	until int64 // 0 while it waits, -1 when it is over
	tell  func(Event)
}

// Start starts `lockkeeper hold ARGUMENTS`. A goroutine reads its events, and calls tell for each.
func Start(arguments []string, tell func(Event)) (*Hold, error) {
	child := exec.Command(cmp.Or(os.Getenv("LOCKKEEPER"), "lockkeeper"), append([]string{"hold"}, arguments...)...)
	child.Stderr = os.Stderr
	input, _ := child.StdinPipe()
	output, _ := child.StdoutPipe()
	hold := &Hold{Input: input, Ended: make(chan struct{}), tell: tell}
	if err := child.Start(); err != nil {
		return nil, err
	}
	go hold.read(child, bufio.NewReader(output))
	return hold, nil
}

func (h *Hold) Held() bool {
	h.lock.Lock()
	defer h.lock.Unlock()
	return now() < h.until
}

func (h *Hold) Say(word map[string]string) {
	h.lock.Lock() // before the word: lines about the hold that it ends may be under way
	if word["do"] == "release" {
		h.until = -1
	} else if word["do"] == "make_way" {
		h.until = min(h.until, 0)
	}
	h.lock.Unlock()
	line, _ := json.Marshal(word)
	h.Input.Write(append(line, '\n')) // lockkeeper may have ended
}

func (h *Hold) read(child *exec.Cmd, lines *bufio.Reader) {
	for isFirst := true; ; isFirst = false {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var event Event
		json.Unmarshal(line, &event) // what is no event is ignored
		if isFirst && event.Protocol != 1 {
			h.take(Event{Event: "failed", ExitCode: 70, Message: "not version 1 of the hold protocol: " + string(line)})
			h.Input.Close()
		}
		h.take(event)
	}
	child.Wait()
	end, status := "ended", child.ProcessState.ExitCode()
	h.lock.Lock()
	if h.until == 0 {
		end = "failed"
	}
	h.lock.Unlock()
	message := fmt.Sprint("lockkeeper ended without a last line: ", status)
	h.take(Event{Event: end, ExitCode: cmp.Or(max(status, 0), 70), Message: message})
	close(h.Ended)
}

func (h *Hold) take(event Event) {
	h.lock.Lock()
	isLast := slices.Contains([]string{"lost", "released", "failed"}, event.Event)
	if h.until == -1 && !isLast && event.Event != "ended" {
		h.lock.Unlock()
		return // after the end, nothing counts
	}
	switch kind := event.Event; {
	case isLast:
		h.until = -1
	case kind == "acquired" && h.until == 0, (kind == "valid" || kind == "checked") && now() < h.until:
		h.until = max(h.until, event.ValidUntil) // once its time has passed, a hold stays lost
	}
	h.lock.Unlock()
	h.tell(event)
}

func now() int64 {
	const boottime = 7
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		panic(errno)
	}
	return now.Nano()
}
