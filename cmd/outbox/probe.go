package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/session"
)

func (a *app) probeCommand() *cobra.Command {
	var sets []string
	var live bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Ask the relay on this machine whether it can do its work",
		Long: `Asks /readyz, or with --live /livez, of the relay that runs here with the same configuration: the address is
http.listen. It is the health check of containers, whose image has no shell and no other program. Exits with 0 if the
relay answers that it is well, otherwise with 1.

It says nothing of brokers and of what waits: that is what outbox check tells.`,
		Example: `  outbox probe
  outbox probe --live --config /etc/outbox/outbox.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := a.Load(load.Input{Unopened: true}, sets)
			if err != nil {
				return err
			}
			path := "/readyz"
			if live {
				path = "/livez"
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			said, err := probe(ctx, loaded.Config.HTTP, path)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.Stdout, said)
			return err
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether the process lives")
	cmd.Flags().DurationVar(&timeout, "timeout", 4*time.Second, "how long to wait for the answer")
	session.SetFlag(cmd, &sets)
	return cmd
}

// probe returns what the relay says at a path. The answer of one that is not well is the error.
func probe(ctx context.Context, h config.HTTP, path string) (string, error) {
	if h.Listen == "" {
		return "", exit.With(exit.Config, errors.New("http.listen is empty, so the relay can't be asked"))
	}
	host, port, err := net.SplitHostPort(h.Listen)
	if err != nil {
		return "", err
	}
	// A relay that listens on all addresses is asked on this machine's own.
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1" // by number: there may be no file with names
	}
	scheme, transport := "http", &http.Transport{DisableKeepAlives: true}
	if h.TLS.CertFile != "" {
		// The certificate is for the name under which others reach the relay, and nothing secret is sent.
		scheme, transport.TLSClientConfig = "https", &tls.Config{InsecureSkipVerify: true}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", fmt.Errorf("no relay answers at http.listen: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the relay is not well: %s: %s", answer.Status, cmp.Or(strings.TrimSpace(string(text)), "no word why"))
	}
	return string(text), nil
}
