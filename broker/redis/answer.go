package redis

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/search"
	"github.com/redis/go-redis/v9"
)

// isAnswer reports whether err is a server's answer, not a missing one.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// answerOf returns a server's answer without the library's wrapping.
func answerOf(err error) error {
	var answer redis.Error
	if errors.As(err, &answer) {
		return answer
	}
	return err
}

// classify turns a server's refusal into an error of the right kind. Nothing that was refused has been appended.
// docs/brokers/redis.md has the table with reasons.
func classify(err error, stream string) error {
	text := err.Error()
	code := codeOf(text)
	wrapped := fmt.Errorf("redis: stream %q: %s", stream, text)
	switch code {
	case "WRONGTYPE":
		return outbox.TopicUnavailable(fmt.Errorf("redis: stream %q: a key of that name, or of its index, holds "+
			"something that is not a stream or set: %s", stream, text))
	case "NOPERM":
		if strings.Contains(text, "command") {
			return outbox.Unavailable(fmt.Errorf("%w; allow the user the commands that docs/brokers/redis.md lists", wrapped))
		}
		return outbox.TopicUnavailable(fmt.Errorf("%w; allow the user the keys ~%s and ~{%s}:outbox:*", wrapped, stream, stream))
	case "OOM":
		return outbox.Unavailable(fmt.Errorf("%w; raise maxmemory, or have streams trimmed", wrapped))
	case "NOAUTH", "WRONGPASS":
		return outbox.Unavailable(fmt.Errorf("%w; check user and password", wrapped))
	case "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN", "CROSSSLOT",
		"BUSY", "UNKILLABLE", "MISCONF", "NOREPLICAS", "NOTREADY", "NOGOODSLAVE", "max",
		"DENIED", "NOPROTO", "NOMASTERLINK", "REDIRECT", "INPROG", "EXECABORT", "NOSCRIPT":
		return outbox.Unavailable(wrapped)
	}
	switch {
	case strings.Contains(text, "command called from script"), strings.Contains(text, "unknown command"):
		return outbox.Unavailable(fmt.Errorf("%w; Redis 6.2 or later is needed, with scripts allowed", wrapped))
	case ofSize(text):
		return outbox.Permanent(fmt.Errorf("%w; see proto-max-bulk-len", wrapped))
	case strings.Contains(text, "rotocol error"):
		return outbox.Unavailable(wrapped)
	}
	return wrapped
}

// ofSize reports whether a server says that something is too large.
func ofSize(text string) bool {
	return strings.Contains(text, "invalid bulk length") || search.OfSize(text)
}

// codeOf returns the first word of a refusal. Before Redis 7 a script's error is wrapped: "ERR Error running script
// (call to f_0a1b): @user_script:12: OOM command not allowed".
func codeOf(text string) string {
	text = strings.TrimPrefix(text, "ERR ")
	if strings.HasPrefix(text, "Error running script") {
		if _, after, found := strings.Cut(text, "@user_script"); found {
			if at := strings.LastIndex(after, ": "); at >= 0 {
				text = after[at+2:]
			}
		}
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}

// errGivenUp means that a call's context ended before a server had answered.
var errGivenUp = errors.New("redis: gave up waiting for an answer")

func noAnswer(err error) error {
	return fmt.Errorf("redis: no answer: %w", err)
}
