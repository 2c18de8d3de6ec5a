package daemon

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

// shop is a table of somebody else's: no column tells what failed or what is blocked.
const shop = `CREATE TABLE shop (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL DEFAULT 't', key text, payload text DEFAULT 'x',
	created_at timestamptz DEFAULT now(), sent_at timestamptz)`

// ofShop configures a destination that reads it, and sends it to an address.
func ofShop(name, table, url string) config.Destination {
	to := fields.Default[config.Destination]()
	to.Name, to.LagObjective = name, 2*time.Second
	receiver := fields.Default[brokers.Webhook]()
	receiver.URL, receiver.AllowNetworks = scalar.NewURL(url), []string{"127.0.0.0/8"}
	to.Broker.Webhook = &receiver
	source := fields.Default[config.Source]()
	source.Strategy, source.Table = "advisory", table
	source.Columns = config.Columns{ID: "id", Topic: "{topic}", Key: "{key}", Payload: "payload", CreatedAt: "created_at"}
	source.Done = config.Done{How: "timestamp", Column: "sent_at"}
	to.Source = &source
	to.Delivery.OnExhausted = "block"
	return to
}

func TestTheVerdictOnATableThatExistsIsTheSameWhateverElseThereIs(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
	}))
	t.Cleanup(receiver.Close)
	for name, c := range map[string]struct{ installed, mixed bool }{
		"tables alone, no schema": {}, "tables alone, with the schema": {installed: true}, "mixed": {installed: true, mixed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			if c.installed {
				db.Install()
			}
			db.Exec(shop)
			db.Exec(strings.Replace(shop, "TABLE shop", "TABLE quiet", 1))
			// What the mapping can't know: a trigger says of each new row that it is sent.
			db.Exec(`CREATE FUNCTION sent() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.sent_at := now(); RETURN NEW; END'`)
			db.Exec(`CREATE TRIGGER sent BEFORE INSERT ON quiet FOR EACH ROW EXECUTE FUNCTION sent()`)
			m := deliverFrom(t, from("one", db.Config(), func(cfg *config.Config) {
				if !c.mixed {
					cfg.Destinations = nil
				}
				cfg.Destinations = append(cfg.Destinations, ofShop("shop", "shop", receiver.URL), ofShop("quiet", "quiet", receiver.URL))
			}))
			seen := func(what, path string, status int, texts ...string) {
				t.Helper()
				var code int
				var body string
				missing := ""
				await.UntilElse(t, func() bool {
					code, body = m.get("/databases/one" + path)
					if path == "/metrics" {
						code, body = m.get("/metrics")
					}
					missing = ""
					for _, text := range texts {
						if !strings.Contains(body, text) {
							missing = text
						}
					}
					return code == status && missing == ""
				}, func() string { return fmt.Sprintf("%s: %q: %d %s", what, missing, code, body) })
			}
			seen("nothing is there", "/healthz/destinations", 200, `"state": "idle"`)
			seen("it is ready", "/readyz", 200)
			db.Exec(`INSERT INTO shop (key) VALUES ('k'), ('k'), ('k'), ('other')`)
			seen("keys are blocked", "/healthz/destinations", 200, `"state": "blocked"`,
				"2 lanes are held until an operator acts; last error: ", "422")
			blocked := []string{`outbox_blocked_lanes{database="one",destination="shop"} 2`,
				`outbox_held_messages{database="one",destination="shop"} 4`,
				`outbox_pending_messages{database="one",destination="shop"} 0`, `outbox_destination_state{database="one",destination="shop",state="blocked"} 1`}
			seen("the metrics know", "/metrics", 200, blocked...)
			if _, body := m.get("/metrics"); strings.Contains(body, "outbox_backlog_read_timestamp_seconds{database=\"one\"} 0\n") {
				t.Error("the database has never been looked at")
			}
			// No row of this table ever waits.
			db.Exec(`INSERT INTO quiet (key, created_at) VALUES ('k', now())`)
			seen("a row was passed over", "/healthz/destinations", 200, `"state": "at_risk"`, "does not wait by the mapping")
			if c.installed {
				r := seenBy(t, db)
				if !strings.Contains(r, "blocked") || !strings.Contains(r, "at_risk") {
					t.Errorf("the database has %s", r)
				}
			}
		})
	}
}

// seenBy is the states of destinations as anybody reads them.
func seenBy(t *testing.T, db testdb.DB) string {
	t.Helper()
	r, err := health.Status(t.Context(), db.Connect())
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for i := range r.Destinations {
		states = append(states, fmt.Sprint(r.Destinations[i].Name, " ", r.Destinations[i].Verdict.State))
	}
	return strings.Join(states, ", ")
}
