package redis

import (
	"errors"
	"testing"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
)

// What servers say, word for word, by the first word.
func TestThePageHasTheKindOfEveryAnswer(t *testing.T) {
	t.Parallel()
	answers := brokertest.Answers{"stream doesn't exist": missing("s")}
	for name, text := range map[string]string{
		"`WRONGTYPE`":            "WRONGTYPE Operation against a key holding the wrong kind of value",
		"`NOPERM` for a key":     "NOPERM No permissions to access a key",
		"`NOPERM` for a command": "NOPERM User relay has no permissions to run the 'eval' command",
		"`NOAUTH`":               "NOAUTH Authentication required.",
		"`WRONGPASS`":            "WRONGPASS invalid username-password pair or user is disabled.",
		"`DENIED`":               "DENIED Redis is running in protected mode because protected mode is enabled",
		"`OOM`":                  "OOM command not allowed when used memory > 'maxmemory'.",
		"`MISCONF`":              "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"`NOREPLICAS`":           "NOREPLICAS Not enough good replicas to write.",
		"`READONLY`":             "READONLY You can't write against a read only replica.",
		"`LOADING`":              "LOADING Redis is loading the dataset in memory",
		"`BUSY`":                 "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"`UNKILLABLE`":           "UNKILLABLE Sorry the script already executed write commands against the dataset.",
		"`MASTERDOWN`":           "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"`MOVED`":                "MOVED 3999 127.0.0.1:6381",
		"`ASK`":                  "ASK 3999 127.0.0.1:6381",
		"`TRYAGAIN`":             "TRYAGAIN Multiple keys request during rehashing of slot",
		"`CLUSTERDOWN`":          "CLUSTERDOWN The cluster is down",
		"`CROSSSLOT`":            "CROSSSLOT Keys in request don't hash to the same slot",
		"`NOSCRIPT`":             "NOSCRIPT No matching script. Please use EVAL.",
		"too many clients":       "ERR max number of clients reached",
		"unknown command":        "ERR unknown command 'EVAL', with args beginning with:",
		"too large":              "ERR Protocol error: invalid bulk length",
		"string too large":       "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
		"any other":              "ERR something else",
	} {
		answers[name] = classify(errors.New(text), "s")
	}
	answers.Page(t, "../../docs/brokers", "redis.md", "answers")
}
