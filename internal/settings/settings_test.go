package settings_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/settings"
)

func TestDefaultsAreSetAndAllFaultsAreReportedWithTheirFields(t *testing.T) {
	t.Parallel()
	var faults settings.Faults
	name, batch, lease, calls, pause := "", 0, time.Duration(0), 70, -time.Second
	settings.Default(&name, "outbox")
	settings.Positive(&faults, "Batch", &batch, 3000)
	settings.AtLeast(&faults, "Lease", &lease, 3*time.Second, 100*time.Millisecond)
	if err := faults.Err(); err != nil || name != "outbox" || batch != 3000 || lease != 3*time.Second {
		t.Fatalf("%q, %d, %v: %v", name, batch, lease, err)
	}
	settings.Within(&faults, "Calls", &calls, 2, 1, 64)
	settings.Positive(&faults, "Pause", &pause, time.Second)
	faults.Need(false, "", "two ways to authenticate")
	faults.Need(true, "Name", "is missing")
	faults.Add("Topic", errors.New("no such field"))
	faults.Add("Topic", nil)
	err := faults.Err()
	if want :=
		"Calls: 70, it must be 1 to 64\nPause: -1s, it must be positive\ntwo ways to authenticate\nTopic: no such field"; err == nil ||
		err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	var fault *settings.Fault
	if !errors.As(err, &fault) || fault.Field != "Calls" || strings.Contains(fault.Err.Error(), "Calls") {
		t.Errorf("the first fault is %+v", fault)
	}
}

func TestFaultsOfWhatIsInAConfigHaveTheNamesOfBothFields(t *testing.T) {
	t.Parallel()
	var inner, outer settings.Faults
	inner.Need(false, "CAFile", "is missing")
	inner.Need(false, "", "two ways")
	inner.Add("Names", errors.Join(errors.New("first"), errors.New("second")))
	outer.Add("TLS", fmt.Errorf("tls: %w", inner.Err()))
	outer.Add("Topic", fmt.Errorf("%w, %w", errors.New("left"), errors.New("right")))
	var got []string
	for _, fault := range settings.List(fmt.Errorf("broker: %w", outer.Err())) {
		got = append(got, fault.Error())
	}
	want := []string{"TLS.CAFile: is missing", "TLS: two ways", "TLS.Names: first", "TLS.Names: second", "Topic: left, right"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := settings.List(errors.New("plain")); len(got) != 1 || got[0].Error() != "plain" || settings.List(nil) != nil {
		t.Errorf("got %v", got)
	}
}

func TestWithoutALoggerTheProgramsDefaultIsTold(t *testing.T) {
	was := slog.Default()
	defer slog.SetDefault(was)
	var told strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&told, nil)))
	settings.Logger(nil).Info("trouble")
	if !strings.Contains(told.String(), "trouble") {
		t.Errorf("the default log has %q", told.String())
	}
	var own strings.Builder
	settings.Logger(slog.New(slog.NewTextHandler(&own, nil))).Info("elsewhere")
	if !strings.Contains(own.String(), "elsewhere") || strings.Contains(told.String(), "elsewhere") {
		t.Errorf("a logger of one's own has %q", own.String())
	}
}
