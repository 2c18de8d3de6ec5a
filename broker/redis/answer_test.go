package redis_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/servers"
)

// The server closes the connection because of an argument that is too large, which has the whole chunk in it.
func TestAMessageThatIsTooLargeForTheServerIsRefusedAlone(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	if err := c.ConfigSet(patient(t), "proto-max-bulk-len", "1048576").Err(); err != nil {
		t.Fatal(err)
	}
	stream := newStream(t, c)
	b := newBroker(t, server.Addr(), redis.Config{})
	var stored []*outbox.Message
	for call := range 2 {
		batch := brokertest.Messages(stream, 20, 20)
		for i, m := range batch {
			m.Key += string(rune('a' + call))
			if i == 7 {
				m.Payload = bytes.Repeat([]byte("x"), 3<<20)
			} else {
				stored = append(stored, m)
			}
		}
		batch[12].Payload = bytes.Repeat([]byte("y"), 900_000) // fits, alone
		errs := b.Publish(patient(t), batch)
		brokertest.CheckRefused(t, batch, errs, 7)
		contains(t, errs[7], "proto-max-bulk-len")
	}
	checkExactly(t, c, stream, stored)
}

const beyond = "-ERR Protocol error: invalid bulk length"

// What a part of a divided request was answered stays, whatever happens to a later part.
func TestAPartOfADividedRequestThatWasAcceptedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []string
		want    string
	}{
		"the last quarter gets no answer": {[]string{beyond, "*0", beyond, "*0", ""}, "accepted accepted accepted unavailable"},
		"the first half gets no answer":   {[]string{beyond, ""}, "unavailable skipped skipped skipped"},
		"the first quarter":               {[]string{beyond, beyond, ""}, "unavailable skipped skipped skipped"},
		"the second quarter":              {[]string{beyond, beyond, "*0", ""}, "accepted unavailable skipped skipped"},
	} {
		b := newBroker(t, scripted(t, c.answers), redis.Config{})
		batch := brokertest.Messages("s", 4, 1)
		for _, m := range batch {
			m.Payload = bytes.Repeat([]byte("x"), 250<<10)
		}
		var kinds []string
		for _, err := range b.Publish(patient(t), batch) {
			kinds = append(kinds, brokertest.Kind(err))
		}
		if got := strings.Join(kinds, " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Services that forbid CONFIG tell nobody their limit.
func TestALimitThatMayNotBeAskedForIsNamed(t *testing.T) {
	t.Parallel()
	batch := brokertest.Messages("s", 1, 1)
	batch[0].Payload = bytes.Repeat([]byte("x"), 1<<20)
	errs := newBroker(t, scripted(t, []string{""}), redis.Config{}).Publish(patient(t), batch)
	contains(t, errs[0], "no answer", "proto-max-bulk-len", "MaxMessageBytes")
	batch[0].Payload = nil
	errs = newBroker(t, scripted(t, []string{""}), redis.Config{}).Publish(patient(t), batch)
	if strings.Contains(errs[0].Error(), "MaxMessageBytes") {
		t.Errorf("a small message: %v", errs[0])
	}
}

// scripted is a server that gives these answers to scripts, one after another; for an empty one it closes the
// connection. It knows no CONFIG, and accepts all other commands.
func scripted(t *testing.T, answers []string) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var serving sync.WaitGroup
	serve := func(conn net.Conn) {
		defer conn.Close()
		for r := bufio.NewReader(conn); ; {
			var n, size int
			if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
				return
			}
			var name string
			for i := range n {
				if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
					return
				}
				value := make([]byte, size+2)
				if _, err := io.ReadFull(r, value); err != nil {
					return
				}
				if i == 0 {
					name = strings.ToUpper(string(value[:size]))
				}
			}
			answer := "+OK"
			switch mu.Lock(); {
			case name == "HELLO":
				answer = "*0"
			case name == "CONFIG":
				answer = "-ERR unknown command 'CONFIG'"
			case name == "EVAL" && len(answers) > 0:
				answer, answers = answers[0], answers[1:]
			}
			mu.Unlock()
			if answer == "" {
				return
			}
			fmt.Fprint(conn, answer, "\r\n")
		}
	}
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return l.Addr().String()
}

func TestAProbeWantsTheRightToAppend(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	good, other := newStream(t, c), newStream(t, c)
	rules := []any{"ACL", "SETUSER", "relay", "on", ">secret", "~" + good, "~{" + good + "}:outbox:*", "+@all", "-@admin"}
	if err := c.Do(patient(t), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(patient(t), "ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "-eval").Err(); err != nil {
		t.Fatal(err)
	}
	for stream, fault := range map[string]string{good: "", other: "allow the user the keys", "{topic}": ""} {
		err := newBroker(t, server.Addr(), redis.Config{Stream: stream, User: "relay", Password: "secret"}).Ping(patient(t))
		if fault != "" {
			contains(t, err, fault)
		} else if err != nil {
			t.Errorf("stream %s: %v", stream, err)
		}
	}
	contains(t, newBroker(t, server.Addr(), redis.Config{User: "mute", Password: "secret"}).Ping(patient(t)), "allow the user the commands")
	if n := c.DBSize(patient(t)).Val(); n != 2 {
		t.Errorf("%d keys: a probe has written something", n)
	}
}
