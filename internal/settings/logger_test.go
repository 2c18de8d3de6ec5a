package settings

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
)

func logged(to io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestAFaultOfAMillionMessagesIsAFewLinesACountAndTheIdsOfSomeMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text await.Buffer
		logger := Logger(logged(&text)).With("destination", "d")
		group := Logger(logger).With("shard_group", 1) // no other bound
		for i := range 1_000_000 {
			logger := []*slog.Logger{logger, group}[i%2]
			logger.Warn("refused", "message_id", i, "row", i, "dedup_key", i, "error", "no")
		}
		time.Sleep(time.Second)
		logger.Warn("something else")
		if n := strings.Count(text.String(), "\n"); n != LogLines {
			t.Errorf("%d lines", n)
		}
		text.Reset()
		for range 100 {
			logger.Error("given up")
		}
		if n := strings.Count(text.String(), "given up"); n != LogLines {
			t.Errorf("%d errors, which have a bound of their own", n)
		}
		text.Reset()
		time.Sleep(LogWindow)
		synctest.Wait()
		want := []string{`msg=refused destination=d error=no more=999988 since=2000-01-01T00:00:00.000Z message_ids="[12 13 14]" rows="[12 13 14]"`,
			`msg="something else" destination=d more=1 since=2000-01-01T00:00:01.000Z`,
			`msg="given up" destination=d more=88 since=2000-01-01T00:00:01.000Z`}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		// They carry the times of what happened, not of their being written.
		if len(lines) != len(want) || !strings.HasPrefix(lines[0], "time=2000-01-01T00:00:00") || !strings.HasPrefix(lines[1],
			"time=2000-01-01T00:00:01") || !strings.HasSuffix(lines[0], want[0]) || !strings.HasSuffix(lines[1], want[1]) {
			t.Errorf("the counts are\n%s", text.String())
		}
		text.Reset()
		for range 100 {
			logger.Info("again")
		}
		if n := strings.Count(text.String(), "\n"); n != LogLines-len(want) {
			t.Errorf("%d lines in the next minute, after %d counts", n, len(want))
		}
		Flush(logger)
		Flush(logger) // nothing is left
		if got := text.String(); strings.Count(got, "\n") != LogLines-len(want)+1 || !strings.Contains(got,
			"msg=again destination=d more=91") {
			t.Errorf("at the end:\n%s", got)
		}
	})
}

func TestLinesOfLevelDebugAreNotBounded(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	logger := Logger(logged(&text)).WithGroup("g")
	for i := range 100 {
		logger.Debug(fmt.Sprint("line ", i))
	}
	if n := strings.Count(text.String(), "\n"); n != 100 {
		t.Errorf("%d lines", n)
	}
}
