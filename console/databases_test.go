package console

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

// thousand are databases of which three need somebody and every tenth is another member's.
func thousand() (all []Database) {
	for i := range 1000 {
		name := fmt.Sprintf("tenant-%04d", i)
		db := Database{Name: name, Path: "../../" + name + "/console/", Member: fmt.Sprint("relay-", i%10),
			Elsewhere: i%10 == 9, Report: &health.Report{}}
		state := health.StateIdle
		switch i {
		case 700:
			state = health.StateLagging
		case 701:
			state = health.StateBroken
		case 702:
			state = health.StateDead
		}
		if !db.Elsewhere {
			verdict := health.Verdict{Finding: health.Finding{State: state, Destination: "kafka", Cause: "the cause of " + name,
				Next: "outbox doctor --database " + name}}
			db.Report = &health.Report{At: time.Now(), Database: name, Verdict: verdict,
				Destinations: []health.Destination{{Name: "kafka", Pending: admin.Count{N: int64(i)}, Verdict: verdict}}}
		}
		all = append(all, db)
	}
	return all
}

var namesOf = regexp.MustCompile(`<a class="name"[^>]*>([^<]*)</a>`)

// A page of a thousand databases is as small as one of fifty. It begins with one verdict and the worst; a search, a
// state and a member select, and pages lead to all others.
func TestAThousandDatabasesAreOnPagesThatStaySmall(t *testing.T) {
	t.Parallel()
	all := thousand()
	s := setup(t, Options{Name: "tenant-0000", Databases: func() []Database { return all }})
	names := func(query string) (list []string, text string) {
		t.Helper()
		began := time.Now()
		answer, text := s.visit("vera", http.MethodGet, "databases"+query, nil)
		if answer.StatusCode != http.StatusOK || len(text) > 100_000 {
			t.Errorf("%s: %s, %d bytes", query, answer.Status, len(text))
		}
		t.Logf("%-40s %d bytes, %v", query, len(text), time.Since(began))
		for _, m := range namesOf.FindAllStringSubmatch(text, -1) {
			list = append(list, m[1])
		}
		return list, text
	}
	list, text := names("")
	if len(list) != databasesAtOnce ||
		strings.Join(list[:4], " ") != "tenant-0701 tenant-0702 tenant-0700 tenant-0000" {
		t.Errorf("%q", list)
	}
	for _, part := range []string{"3 of 900 databases need you: tenant-0701 (broken), tenant-0702 (dead), tenant-0700 (lagging)",
		"100 with other members of the fleet", "outbox doctor --database tenant-0701", "1 to 50 of 1,000", "page=2",
		"tenant-0701: broken: "} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in %s", part, text)
		}
	}
	for query, want := range map[string]string{
		"?name=+0701":                   "tenant-0701",
		"?name=TENANT-0702":             "tenant-0702",
		"?state=need_you":               "tenant-0701 tenant-0702 tenant-0700",
		"?state=lagging":                "tenant-0700",
		"?state=lagging&member=relay-1": "",
		"?member=relay-1&name=001":      "tenant-0001 tenant-0011",
		"?name=tenant-0009":             "tenant-0009",
	} {
		list, text := names(query)
		if got := strings.Join(list, " "); got != want || !strings.Contains(text, "Show all") ||
			want == "" && !strings.Contains(text, "No database is like this") {
			t.Errorf("%s: %q", query, got)
		}
	}
	if list, text := names("?page=20"); len(list) != 50 || list[49] != "tenant-0999" || !strings.Contains(text, "with relay-9") ||
		strings.Contains(text, ">Next<") {
		t.Errorf("the last page has %q", list)
	}
	if list, _ := names("?page=7000"); len(list) != 50 {
		t.Errorf("a page that there isn't has %q", list)
	}
	if _, text := names("?name=" + "%3Cscript%3E"); strings.Contains(text, "<script>") {
		t.Error("a search becomes markup")
	}
}
