package brokertest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
)

// Pinger is a broker as far as ClosesWhileItDials needs it.
type Pinger interface {
	io.Closer
	Ping(context.Context) error
}

// ClosesWhileItDials checks that Close ends a Ping of a server that takes a connection and says nothing, and leaves no
// connection. open makes the broker, whose timeouts have to be longer than [await.Patience].
func ClosesWhileItDials(t *testing.T, open func(address string) (Pinger, error)) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	broker, err := open(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	pinged, closed := make(chan error, 1), make(chan error, 1)
	go func() { pinged <- broker.Ping(context.Background()) }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() // ends everything if the test fails
	go func() { closed <- broker.Close() }()
	patient := Patient(t)
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-patient.Done():
		t.Fatal("Close hangs while a caller dials")
	}
	select {
	case err := <-pinged:
		Contains(t, err, "the broker is closed")
	case <-patient.Done():
		t.Fatal("Ping goes on after Close")
	}
	if err := conn.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection is open after Close")
	}
}
