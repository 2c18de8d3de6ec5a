package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/await"
)

func TestTheGateKnowsWhoAsks(t *testing.T) {
	t.Parallel()
	hash, err := bcrypt.GenerateFromPassword([]byte("correct horse"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	const token, other = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
	cfg := config.HTTP{
		Users: []config.User{
			{Name: "anna", Role: "operator", Destinations: []string{"kafka"}, PasswordHash: scalar.NewSecret(string(hash))},
			{Name: "ci", Role: "viewer", Token: scalar.NewSecret(token)},
			{Name: "robot", Role: "operator", TokenSHA256: hex.EncodeToString(digest(other))},
		},
		Proxy: &config.Proxy{From: []string{"10.0.0.0/8", "::1/128"}, Header: "X-Forwarded-User"},
	}
	guarded, open := newGate(cfg), newGate(config.HTTP{})
	strict := cfg
	strict.Proxy = &config.Proxy{From: cfg.Proxy.From, Header: cfg.Proxy.Header, UsersOnly: true}
	usersOnly := newGate(strict)
	for _, c := range []struct {
		gate         *gate
		from, host   string
		header       []string
		want         string // name and role; "" is refused
		destinations int
	}{
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", basic("anna", "correct horse")}, "anna operator", 1},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", basic("anna", "correct horse")}, "anna operator", 1}, // known by now
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", basic("anna", "wrong")}, "", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", basic("anna", "")}, "", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", basic("nobody", "correct horse")}, "", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", basic("ci", "")}, "", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", "Bearer " + token}, "ci viewer", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", "bearer " + other}, "robot operator", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", "Bearer " + hex.EncodeToString(digest(other))}, "", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", "Bearer "}, "", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", "Digest x"}, "", 0},
		{guarded, "192.0.2.1:1", "x", []string{"Authorization", "Bearer " + token, "Authorization", "Bearer " + other}, "", 0},
		{guarded, "192.0.2.1:1", "x", nil, "", 0},
		{guarded, "127.0.0.1:1", "localhost", nil, "", 0},
		{guarded, "10.1.2.3:1", "x", []string{"X-Forwarded-User", "anna"}, "anna operator", 1},
		{guarded, "[::ffff:10.1.2.3]:1", "x", []string{"X-Forwarded-User", "anna"}, "anna operator", 1},
		{guarded, "[::1]:1", "x", []string{"X-Forwarded-User", "zoe"}, "zoe viewer", 0},
		{usersOnly, "[::1]:1", "x", []string{"X-Forwarded-User", "anna"}, "anna operator", 1},
		{usersOnly, "[::1]:1", "x", []string{"X-Forwarded-User", "zoe"}, "", 0},
		{guarded, "11.1.2.3:1", "x", []string{"X-Forwarded-User", "anna"}, "", 0},
		{guarded, "10.1.2.3:1", "x", []string{"X-Forwarded-User", "zoe", "X-Forwarded-User", "anna"}, "", 0},
		{guarded, "10.1.2.3:1", "x", []string{"X-Forwarded-User", ""}, "", 0},
		{guarded, "10.1.2.3:1", "x", []string{"X-Forwarded-User", "anna", "Authorization", basic("anna", "wrong")}, "", 0},
		{open, "127.0.0.1:1", "127.0.0.1:9187", nil, "somebody at this machine viewer", 0},
		{open, "127.0.0.1:1", "localhost:9187", nil, "somebody at this machine viewer", 0},
		{open, "[::1]:1", "[::1]:9187", nil, "somebody at this machine viewer", 0},
		{open, "127.0.0.1:1", "evil.example", nil, "", 0},
		{open, "127.0.0.1:1", "127.0.0.1.evil.example:9187", nil, "", 0},
		{open, "127.0.0.1:1", "localhost", []string{"X-Forwarded-User", "anna"}, "somebody at this machine viewer", 0},
		{open, "127.0.0.1:1", "localhost", []string{"Authorization", basic("anna", "x")}, "", 0},
	} {
		r := httptest.NewRequest("GET", "/api/v1/status", nil)
		r.RemoteAddr, r.Host = c.from, c.host
		for i := 0; i < len(c.header); i += 2 {
			r.Header.Add(c.header[i], c.header[i+1])
		}
		got, err := c.gate.caller(r)
		text := fmt.Sprintf("%s %s", got.Name, got.Role)
		if err != nil {
			text = ""
		}
		if text != c.want || len(got.Destinations) != c.destinations {
			t.Errorf("from %s to %s with %q: %q %v, want %q", c.from, c.host, c.header, text, got.Destinations, c.want)
		}
	}
	// One who guesses waits for the others who do.
	guarded.comparing <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := guarded.password(ctx, "anna", "guess"); err == nil {
		t.Error("a guess was compared beside another")
	}
	if c, err := guarded.password(ctx, "anna", "correct horse"); err != nil || c.Name != "anna" {
		t.Errorf("%v, %v: one who is known waits for those who guess", c, err)
	}
}

func basic(name, password string) string {
	r := httptest.NewRequest("GET", "/", nil)
	r.SetBasicAuth(name, password)
	return r.Header.Get("Authorization")
}

func TestOfTooManyConnectionsTheOneThatHasWaitedLongestIsClosed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			entered <- struct{}{}
			<-leave
		}
		_, _ = io.WriteString(w, "done")
	})}
	c := &connections{limit: 3}
	c.guard(server)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	dial := func(request string) net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, request)
		return conn
	}
	busy := dial("GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	<-entered
	slow := []net.Conn{dial(""), dial("GET / HTTP/1.1\r\nX: "), dial(""), dial("G")}
	for _, conn := range slow[:2] { // two too many
		_ = conn.SetReadDeadline(await.Deadline(t))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection that has waited longest stays: %v", err)
		}
	}
	answer, err := http.Get("http://" + l.Addr().String() + "/")
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer, err)
	}
	_ = answer.Body.Close()
	close(leave)
	if text, err := io.ReadAll(busy); err != nil || len(text) == 0 {
		t.Errorf("the one that was being answered: %q, %v", text, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) > c.limit {
		t.Errorf("%d connections", len(c.all))
	}
}
