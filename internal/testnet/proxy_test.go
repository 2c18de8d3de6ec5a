package testnet_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// echo is a server that says what it hears.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // until the other end closes
			}()
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	return listener.Addr().String()
}

func dial(t *testing.T, p *testnet.Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// say sends text, and hear waits for it.
func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if got := read(t, conn, len(text)); got != text {
		t.Fatalf("heard %q; want %q", got, text)
	}
}

func read(t *testing.T, conn net.Conn, bytes int) string {
	t.Helper()
	if err := conn.SetReadDeadline(await.Deadline(t)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, bytes)
	if _, err := io.ReadFull(conn, got); err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// broken waits for the end of conn.
func broken(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(await.Deadline(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection is open")
	}
}

// silent verifies that nothing is heard.
func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(await.Expiry(50 * time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %d bytes, %v", n, err)
	}
}

func TestTheDistanceChangesNothingOfWhatPasses(t *testing.T) {
	t.Parallel()
	p := testnet.New(t, echo(t))
	text := strings.Repeat("0123456789", 300_000)
	for _, roundTrip := range []time.Duration{0, 2 * time.Millisecond} {
		p.Distance(roundTrip)
		conn := dial(t, p)
		go io.WriteString(conn, text) // echoed meanwhile
		hear(t, conn, text)
	}
	if p.Opened() != 2 {
		t.Errorf("%d connections", p.Opened())
	}
}

func TestAHalfOpenConnectionIsSilentUntilTheNetworkHeals(t *testing.T) {
	t.Parallel()
	p := testnet.New(t, echo(t))
	conn := dial(t, p)
	say(t, conn, "a")
	hear(t, conn, "a")
	p.HalfOpen()
	say(t, conn, "b")
	silent(t, conn)
	again := dial(t, p)
	say(t, again, "c")
	hear(t, again, "c")
	p.Heal()
	broken(t, conn)
	say(t, again, "d")
	hear(t, again, "d")
}

func TestAProxyThatRefusesTakesNothingUntilItHeals(t *testing.T) {
	t.Parallel()
	p := testnet.New(t, echo(t))
	conn := dial(t, p)
	p.Refuse(true)
	broken(t, conn)
	if conn, err := net.Dial("tcp", p.Addr()); err == nil {
		broken(t, conn)
		conn.Close()
	}
	p.Heal()
	p.Slow(testnet.Slow{Latency: time.Millisecond, Bandwidth: 1 << 20, Slice: 2})
	conn = dial(t, p)
	say(t, conn, "abcde")
	hear(t, conn, "abcde")
}

func TestAFrozenNetworkPassesNothingUntilItIsThawed(t *testing.T) {
	t.Parallel()
	p := testnet.New(t, echo(t))
	conn := dial(t, p)
	say(t, conn, "a")
	hear(t, conn, "a")
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	say(t, conn, "b")
	silent(t, conn)
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	hear(t, conn, "b")
}

func TestAFrozenNetworkCanBeTakenDown(t *testing.T) {
	t.Parallel()
	p := testnet.New(t, echo(t))
	conn := dial(t, p)
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	say(t, conn, "a")
	if err := p.Down(); err != nil {
		t.Fatal(err)
	}
	broken(t, conn)
}

func TestAnswersAreLostWithTheirConnectionOrWithout(t *testing.T) {
	t.Parallel()
	p := testnet.New(t, echo(t))
	conn := dial(t, p)
	await.Until(t, "an answer that is lost", func() bool {
		p.SwallowAnswers(true)
		say(t, conn, "a")
		silent(t, conn)
		p.SwallowAnswers(false)
		say(t, conn, "b")
		if read(t, conn, 1) == "b" {
			return true
		}
		hear(t, conn, "b") // on a slow machine the answer to a came later
		return false
	})
	p.CutAnswers(true)
	say(t, conn, "c")
	broken(t, conn)
}

func TestOneConnectionIsCutAfterSoManyBytes(t *testing.T) {
	t.Parallel()
	p := testnet.New(t, echo(t))
	conn := dial(t, p)
	say(t, conn, "abc")
	hear(t, conn, "abc")
	p.CutAfter(5)
	say(t, conn, "defg")
	hear(t, conn, "defg")
	say(t, conn, "h")
	broken(t, conn)
	again := dial(t, p)
	say(t, again, "0123456789")
	hear(t, again, "0123456789")
	p.Cut()
	broken(t, again)
}

func TestAProxyThatIsDownRefusesAndComesBackWhereItWas(t *testing.T) {
	t.Parallel()
	p := testnet.New(t, echo(t))
	conn := dial(t, p)
	if err := p.Down(); err != nil {
		t.Fatal(err)
	}
	broken(t, conn)
	if conn, err := net.Dial("tcp", p.Addr()); err == nil {
		conn.Close()
		t.Error("a connection was taken")
	}
	if err := p.Up(); err != nil {
		t.Fatal(err)
	}
	conn = dial(t, p)
	say(t, conn, "a")
	hear(t, conn, "a")
}
