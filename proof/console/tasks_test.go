package console

import (
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// task is something that an operator wants, from the overview on: the clicks, and what is true then.
type task struct {
	want   string
	clicks []string // selectors, or the texts of links and buttons
	says   []string // texts of the page after the last click
	holds  string   // SQL that is true in the end
}

const sure = "dialog button[type=submit]"

var tasks = []task{
	{want: "what doesn't flow, and since when", says: []string{"stalled for", "warehouse", "connection refused"}},
	{want: "which topic fails, and why", says: []string{"orders-kafka", "topic orders.v2 does not exist"}},
	{want: "who paused mail, until when, and why", says: []string{"paused by anna until", "billing migration"}},
	{
		want:   "which relay delivers orders, and its version",
		clicks: []string{"Relays"},
		says:   []string{"relay-1", "live", "orders-kafka"},
	},
	{want: "who keeps the disk full", clicks: []string{"Retention"}, says: []string{"The outbox has", "warehouse"}},
	{
		want:   "which keys are blocked, and behind what",
		clicks: []string{`a[href="keys?destination=search-index"]`},
		says:   []string{"blocked", "422: schema 42 is unknown", "p-1"},
	},
	{
		want:   "where the first message of a blocked key is, and what came before",
		clicks: []string{`a[href="keys?destination=search-index"]`, `td a[href^="message?message="]`},
		says:   []string{"written", "blocked", "search-index", "10 attempts", "422: schema 42 is unknown"},
	},
	{want: "what was written of late", clicks: []string{"Messages"}, says: []string{"looked at in", "orders", "k-"}},
	{
		want:   "have the time-outs of users delivered",
		clicks: []string{"Dead letters", `a[href^="do-dead-requeue"][href*="topic=users"]`, sure},
		says:   []string{"Requeue: 40 messages, as job", "Undo"},
		holds: `SELECT NOT EXISTS (SELECT FROM outbox.dead_letters WHERE destination = 'billing' AND topic = 'users')
			AND (SELECT detail::text LIKE '%40%' AND reason = 'as agreed' FROM outbox.audit WHERE verb = 'requeue' AND actor = 'anna')`,
	},
	{
		want:   "say that the dead letters of search are known",
		clicks: []string{"Dead letters", `a[href^="do-dead-ack"][href*="search-index"]`, sure},
		says:   []string{"Acknowledge: 40 messages, as job"},
		holds: `SELECT NOT EXISTS (SELECT FROM outbox.dead_letters WHERE destination = 'search-index'
			AND acknowledged_at IS NULL)`,
	},
	{
		want:   "pause billing",
		clicks: []string{"td a.name[href='destination?name=billing']", `a[href^="do-pause"]`, sure},
		says:   []string{"Paused billing until it is ended"},
		holds: `SELECT EXISTS (SELECT FROM outbox.controls WHERE destination = 'billing' AND rate IS NULL
			AND actor = 'anna')`,
	},
	{
		want:   "end the pause of mail",
		clicks: []string{"td a.name[href='destination?name=mail']", `a[href^="do-resume"]`, sure},
		says:   []string{"Resumed mail"},
		holds:  `SELECT NOT EXISTS (SELECT FROM outbox.controls WHERE destination = 'mail')`,
	},
	{want: "what people did", clicks: []string{"Audit"}, says: []string{"as agreed", "resume", "acknowledge"}},
	{
		want:   "discard what a customer gave up",
		clicks: []string{"Dead letters", `a[href^="do-dead-discard"][href*="topic=orders"][href*="search-index"]`, sure},
		says:   []string{"Discard: 40 messages, as job"},
		holds:  `SELECT NOT EXISTS (SELECT FROM outbox.dead_letters WHERE destination = 'search-index')`,
	},
}

func TestTasksTakeThreeClicksAtMost(t *testing.T) {
	w := setup(t, small)
	w.missing.Store(true)
	w.write(t.Context())
	b := open(t, operator)
	b.as(1280, 900, "light")
	b.visit(w.base)
	b.await(`document.querySelector("h1").textContent.includes("warehouse")`)
	b.await(`document.body.textContent.includes("topic orders.v2")`)
	for _, task := range tasks {
		if len(task.clicks) > 3 {
			t.Errorf("%s takes %d clicks", task.want, len(task.clicks))
		}
		b.visit(w.base)
		for _, where := range task.clicks {
			if !strings.ContainsAny(where, "[.") {
				where = `//nav//a[starts-with(normalize-space(), "` + where + `")]`
				b.click(where, chromedp.BySearch)
				continue
			}
			if strings.HasPrefix(where, "dialog") {
				b.do(chromedp.WaitVisible("dialog input[name=reason]", chromedp.ByQuery),
					chromedp.SendKeys("dialog input[name=reason]", "as agreed", chromedp.ByQuery))
			}
			b.click(where, chromedp.ByQuery)
		}
		for _, text := range task.says {
			b.await(`document.querySelector("main").textContent.toLowerCase().includes(` + strconv.Quote(strings.ToLower(text)) + `)`)
		}
		if task.holds != "" { // a job begins when the time for an undo is over
			w.Await(task.holds)
		}
		for _, text := range b.troubles() {
			t.Errorf("%s: %s", task.want, text)
		}
		t.Logf("%-50s %d clicks", task.want, len(task.clicks))
	}
	w.byKeyboard(b)
	w.withoutScript(b)
}

// byKeyboard walks by keys alone.
func (w *world) byKeyboard(b *browser) {
	t := w.T
	b.visit(w.base)
	// A page listens to keys once it is complete.
	path := func(want string) {
		b.await(`document.readyState === "complete" && location.pathname.split("/").pop() === ` + strconv.Quote(want))
	}
	b.do(chromedp.KeyEvent("g"), chromedp.KeyEvent("d"))
	path("dead")
	b.await(`document.querySelector("main tbody tr")`)
	b.do(chromedp.KeyEvent("j"))
	b.await(`document.querySelector("tr.chosen") && document.activeElement.matches("tr.chosen a")`)
	b.do(chromedp.KeyEvent(kb.Enter))
	path("letters")
	b.do(chromedp.KeyEvent("g"), chromedp.KeyEvent("k"))
	path("keys")
	b.do(chromedp.KeyEvent("/"))
	b.await(`document.activeElement.closest("form.filter")`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.await(`document.activeElement === document.body`)
	b.do(chromedp.KeyEvent("p"))
	b.await(`document.getElementById("live").textContent.startsWith("Paused")`)
	b.do(chromedp.KeyEvent("p"))
	b.await(`document.getElementById("live").textContent === "Live"`)
	b.await(`(document.querySelector("a[href^=do-dead-requeue]").focus(), document.activeElement.matches("a[href^=do-dead-requeue]"))`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.await(`document.querySelector("dialog[open]") && document.activeElement.name === "reason"`)
	b.do(chromedp.SendKeys("dialog input[name=reason]", "gp?", chromedp.ByQuery))
	b.await(`document.activeElement.value === "gp?" && location.pathname.endsWith("keys")`) // no letter acts in a field
	b.do(chromedp.KeyEvent(kb.Escape))
	b.await(`!document.querySelector("dialog")`)
	b.do(chromedp.KeyEvent("?"))
	path("help")
	for _, text := range b.troubles() {
		t.Errorf("by keyboard: %s", text)
	}
}

// withoutScript reads each page, and acts, where scripts don't run.
func (w *world) withoutScript(b *browser) {
	t := w.T
	b.do(emulation.SetScriptExecutionDisabled(true))
	for _, path := range pages {
		b.visit(w.base + path)
		var head string
		b.do(chromedp.Text("h1", &head, chromedp.ByQuery))
		if head == "" {
			t.Errorf("%s has no head without script", path)
		}
	}
	b.visit(w.base + "destination?name=legacy")
	b.click(`a[href^="do-throttle"]`, chromedp.ByQuery)
	b.do(chromedp.WaitVisible("#p-rate", chromedp.ByQuery),
		chromedp.SendKeys("#p-rate", "50", chromedp.ByQuery), chromedp.SendKeys("#p-reason", "they catch up", chromedp.ByQuery),
		chromedp.Click("main form:has([name=_proposal]) button[type=submit]", chromedp.ByQuery), // what it would do
		chromedp.WaitVisible("main form.act:not(:has([name=_proposal]))", chromedp.ByQuery),
		chromedp.Click("main form.act button[type=submit]", chromedp.ByQuery), chromedp.WaitVisible(".said", chromedp.ByQuery))
	if w.Value(`SELECT (count(*) = 1)::text FROM outbox.controls WHERE destination = 'legacy' AND rate = 50`) != "true" {
		t.Error("without script nothing was throttled")
	}
}

func TestScriptInWhatIsShownRunsNowhere(t *testing.T) {
	w := setup(t, small)
	const hostile = `<script>window.hacked=1</script>"><img src=x onerror="window.hacked=1">' onfocus=alert(1) autofocus='` +
		"\u202e"
	w.Exec(`UPDATE outbox.dead_letters SET topic = $1, key = $1, lane = $1, payload = convert_to($1, 'UTF8'),
		headers = jsonb_build_object($1::text, $1::text), event_type = $1, error = $1 || repeat('x', 100000), reason = $1 WHERE id <= 60`, hostile)
	w.Exec(`UPDATE outbox.holds SET topic = $1, key = $1, lane = $1 || id, error = $1`, hostile)
	w.Exec(`UPDATE outbox.controls SET actor = $1, reason = $1`, hostile)
	w.Exec(`INSERT INTO outbox.audit (actor, verb, destination, reason, detail)
		VALUES ($1, $1, $1, $1, jsonb_build_object($1::text, $1::text))`, hostile)
	w.Exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, last_error, state)
		SELECT $1, 0, 1, system_identifier, $1, $1, 'failing' FROM pg_control_system()`, hostile)
	b := open(t, operator)
	b.as(1280, 900, "light")
	b.visit(w.base)
	b.await(`document.body.textContent.includes("window.hacked")`)
	letter := w.Value(`SELECT message_id::text FROM outbox.dead_letters WHERE id = 7`)
	for _, path := range append([]string{"letter?ids=" + letter, "letters?destination=billing"}, pages...) {
		b.visit(w.base + path)
		var hacked bool
		b.eval(`!!window.hacked || document.querySelectorAll("main img, main script").length > 0`, &hacked)
		if hacked {
			t.Errorf("%s: the script of a text has run", path)
		}
		for _, text := range append(b.troubles(), b.geometry(28)...) {
			t.Errorf("%s: %s", path, text)
		}
	}
}
