//go:build !kafka

package main

import (
	"io"
	"strings"
	"testing"
)

func TestADemoWithoutKafkasClientSaysHowToBuildIt(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), Config{Kafka: "127.0.0.1:9092", Relay: []string{"unused"}, Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "go run -tags kafka ./demo --kafka 127.0.0.1:9092") {
		t.Errorf("got %v", err)
	}
}
