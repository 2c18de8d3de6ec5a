package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/authority"
)

// configure writes the outbox.yaml that commands find where they run.
func (d *database) configure(yaml string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.folder, "outbox.yaml"), []byte(yaml), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func TestAProbeTellsWhetherTheRelayHereIsWell(t *testing.T) {
	t.Parallel()
	shown := authority.New(t).Server(t, "relay.example") // for another name than the one that is asked
	for name, c := range map[string]struct{ host, more string }{
		"on loopback":      {"127.0.0.1", ""},
		"on all addresses": {"0.0.0.0", "api: false"},
		"by either family": {"[::]", "api: false"},
		"with TLS":         {"127.0.0.1", fmt.Sprintf("tls: {cert_file: %s, key_file: %s}", shown.File, shown.KeyFile)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			_, port, err := net.SplitHostPort(freeAddress(t))
			if err != nil {
				t.Fatal(err)
			}
			d.configure(strings.Replace(d.fileYAML(""), "http: {listen: ''}",
				fmt.Sprintf("http: {listen: '%s:%s', %s}", c.host, port, c.more), 1))
			d.outbox("probe").want(exitError, "no relay answers at http.listen")
			relay := d.start(nil, "relay")
			until(t, "the relay is well", func() bool { return d.outbox("probe").code == exitOK })
			d.outbox("probe", "--live").want(exitOK, "alive")
			if code := relay.stop(); code != exitOK {
				t.Errorf("exit code %d", code)
			}
			d.outbox("probe").want(exitError, "no relay answers")
		})
	}
}

func TestAProbeSaysWhatItCannotAsk(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	d.configure(d.fileYAML(""))
	d.outbox("probe").want(exitConfig, "http.listen is empty")
	d.outbox("probe", "--server", "http://127.0.0.1:1").want(exitUsage, "leave out --server")
}

func TestAProbeRepeatsWhyTheRelayIsNotWell(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	relay := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(rw, "the database does not answer")
	}))
	defer relay.Close()
	d.configure(strings.Replace(d.fileYAML(""), "''", relay.Listener.Addr().String(), 1))
	d.outbox("probe").want(exitError, "the relay is not well: 503", "the database does not answer")
	d.outbox("probe", "--live").want(exitOK)
}
