//go:build kafka

package main

import (
	"io"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestADemoWithKafkaEndsWell(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	kafka := servers.TestKafka(t)
	var out, progress await.Buffer
	err := Run(t.Context(), Config{Kafka: kafka.Addr(), For: MinFor, JSON: true, Rate: 200, Stdout: &out, Stderr: &progress})
	checkRun(t, err, out.String(), progress.String())
	if all := lines(t, out.String()); !strings.HasPrefix(all[len(all)-1].Broker, "Kafka ") {
		t.Errorf("the broker is %q", all[len(all)-1].Broker)
	}
}

func TestAKafkaThatDoesntAnswerIsNamed(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	err := Run(t.Context(), Config{Kafka: "127.0.0.1:1", Relay: []string{"unused"}, Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "no Kafka answers at 127.0.0.1:1 (--kafka)") ||
		!strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}
