package testnet

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

func TestTheDistanceChangesNothingOfWhatPasses(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // an echo, which ends when the other side has
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			conn.Close()
		}
	}()
	d, err := StartProxy()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.Forward(server.Addr().String())
	for _, rtt := range []time.Duration{0, 2 * time.Millisecond} {
		d.Distance(rtt)
		conn, err := net.Dial("tcp", d.Addr())
		if err != nil {
			t.Fatal(err)
		}
		sent := make([]byte, 3<<20)
		for i := range sent {
			sent[i] = byte(i * 7 >> 3)
		}
		go func() { _, _ = conn.Write(sent) }()
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, sent) {
			t.Errorf("with %v, other bytes came back", rtt)
		}
		conn.Close()
	}
}
