package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/internal/configtest"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

func TestADestinationNotifiesAsItSaysOrElseAsAllDo(t *testing.T) {
	t.Parallel()
	l, complaint := configtest.Try(t, `
database: {url: "postgres://localhost/orders"}
notify: {webhook: {url: "https://hooks.example.com/hidden"}, every: 5m}
destinations:
  - {name: a, broker: {stdout: {}}}
  - {name: b, broker: {stdout: {}}, notify: {command: {argv: [cat]}}}
`, load.Input{})
	if complaint != "" {
		t.Fatal(complaint)
	}
	c := &l.Config
	if n := c.Notification(&c.Destinations[0]); n != c.Notify || n.Every != 5*time.Minute || n.Collect != 2*time.Second ||
		n.Webhook.Timeout != 10*time.Second || n.Command != nil {
		t.Errorf("a notifies by %+v", n)
	}
	if n := c.Notification(&c.Destinations[1]); n.Webhook != nil || n.Command == nil || n.Every != time.Minute {
		t.Errorf("b notifies by %+v", n)
	}
	if shown := l.Show(); strings.Contains(shown, "hidden") || !strings.Contains(shown, "every: 5m") {
		t.Errorf("shown as\n%s", shown)
	}
}
