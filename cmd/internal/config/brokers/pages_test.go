package brokers_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
)

// Lines on standard output and in a file are one adapter.
func TestThePageThatComparesHasTheNumberOfBrokers(t *testing.T) {
	t.Parallel()
	words := []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"}
	n := reflect.TypeFor[brokers.Broker]().NumField() - 1
	pages, err := filepath.Glob("../../../../docs/brokers/*.md")
	if err != nil || len(pages) != n {
		t.Errorf("%d brokers have %d pages, %v", n, len(pages), err)
	}
	text, err := os.ReadFile("../../../../docs/comparison.md")
	if err != nil || !strings.Contains(string(text), "| brokers | "+words[n]+" |") {
		t.Errorf("docs/comparison.md doesn't say that there are %s brokers: %v", words[n], err)
	}
}
