package console

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/await"
)

// numbers are what is said of a destination.
type numbers struct {
	State               string
	Pending, Held, Dead int64
}

// The system rests, so that what is said must be equal once everybody has looked.
func TestPageAPICommandAndMetricsSayTheSame(t *testing.T) {
	w := setup(t, small)
	w.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 'stock', 'k', 'x' FROM generate_series(1, 53)`)
	b := open(t, operator)
	b.visit(w.base)
	differ := ""
	defer func() {
		if t.Failed() {
			t.Log(differ)
		}
	}()
	await.Until(t, "all say the same", func() bool {
		said := reported(t, w.get("/api/v1/status"))
		differ = ""
		for who, all := range map[string]map[string]numbers{
			"command": reported(t, w.command("status", "-o", "json")), "metrics": w.measured(), "page": b.shown(),
		} {
			if !maps.Equal(all, said) {
				differ += fmt.Sprintf("%s: %+v\n", who, all)
			}
		}
		stalled := said["warehouse"].Pending == 53 && said["warehouse"].State == "stalled"
		if !stalled || said["billing"].Dead != 360 || said["search-index"].Held != 60 {
			differ += "it is not yet what the test is about\n"
		}
		if differ != "" {
			differ = fmt.Sprintf("API: %+v\n%s", said, differ)
		}
		return differ == ""
	})
}

// get asks the relay, as an operator.
func (w *world) get(path string) []byte {
	w.T.Helper()
	r, err := http.NewRequestWithContext(w.T.Context(), http.MethodGet, strings.TrimSuffix(w.base, "/console/")+path, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+operator)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		w.T.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		w.T.Fatalf("%s: %d %v\n%s", path, answer.StatusCode, err, body)
	}
	return body
}

// command runs the program beside the relay, with the relay's configuration.
func (w *world) command(args ...string) []byte {
	w.T.Helper()
	config := w.relay.Command.Args[len(w.relay.Command.Args)-1]
	out, err := exec.CommandContext(w.T.Context(), w.relay.Command.Path, append(args, "--config", config)...).Output()
	if err != nil {
		w.T.Fatalf("outbox %v: %v\n%s", args, err, out)
	}
	return out
}

// reported are the numbers of a report.
func reported(t *testing.T, text []byte) map[string]numbers {
	t.Helper()
	var report health.Report
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	all := map[string]numbers{}
	for _, d := range report.Destinations {
		all[d.Name] = numbers{string(d.Verdict.State), d.Pending.N, d.Held.Messages.N, d.Dead.Messages.N}
	}
	return all
}

var (
	sample = regexp.MustCompile(`(?m)^outbox_(destination_state|pending_messages|held_messages|dead_messages)\{(.*)\} (\d+)$`)
	label  = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// measured are the numbers of the metrics.
func (w *world) measured() map[string]numbers {
	w.T.Helper()
	all := map[string]numbers{}
	for _, m := range sample.FindAllStringSubmatch(string(w.get("/metrics")), -1) {
		labels := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = l[2]
		}
		n, value := all[labels["destination"]], int64(0)
		if _, err := fmt.Sscan(m[3], &value); err != nil {
			w.T.Fatal(err)
		}
		switch m[1] {
		case "pending_messages":
			n.Pending = value
		case "held_messages":
			n.Held = value
		case "dead_messages":
			n.Dead = value
		default:
			if value == 1 {
				n.State = labels["state"]
			}
		}
		all[labels["destination"]] = n
	}
	return all
}

// shown are the numbers of the page.
func (b *browser) shown() map[string]numbers {
	b.t.Helper()
	words := map[string]string{}
	for _, s := range health.States() {
		words[s.Word()] = string(s)
	}
	var rows [][]string
	b.eval(`[...document.querySelectorAll("tbody tr")].filter(r => r.querySelector("a.name")).map(r => {
		const cell = (label) => r.querySelector('td[data-label="' + label + '"]').textContent;
		const number = (label) => cell(label).replace(/[^0-9]/g, "");
		return [cell("Destination"), r.querySelector(".state b").textContent, number("Pending"), number("Held"), number("Dead")];
	})`, &rows)
	all := map[string]numbers{}
	for _, r := range rows {
		n := numbers{State: words[r[1]]}
		for i, into := range []*int64{&n.Pending, &n.Held, &n.Dead} {
			if _, err := fmt.Sscan(r[2+i], into); err != nil {
				b.t.Fatalf("%v: %v", r, err)
			}
		}
		all[r[0]] = n
	}
	return all
}
