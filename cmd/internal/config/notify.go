package config

import (
	"net/url"
	"os/exec"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/notify"
)

// Notify configures notifications about messages that will not be tried again. See docs/notify.md.
type Notify struct {
	Webhook *NotifyWebhook `json:"webhook" jsonschema:"A receiver of {\"text\": ...}, as Slack and those that follow it have. None: nobody is posted to."`
	Command *NotifyCommand `json:"command" jsonschema:"A program that gets the notification as JSON on standard input. None: none is run."`
	Collect time.Duration  `json:"collect" jsonschema:"How long the first message waits for others, that they share a notification."`
	Every   time.Duration  `json:"every" jsonschema:"Shortest time between two notifications on one destination; what happens meanwhile is in the next."`
}

// NotifyWebhook configures a receiver of {"text": ...}.
type NotifyWebhook struct {
	URL     scalar.Secret `json:"url" jsonschema:"Where notifications are posted. Whoever knows it can post, so it is masked. Required."`
	URLFile string        `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
	Timeout time.Duration `json:"timeout" jsonschema:"Bound of a request as a whole."`
}

// NotifyCommand configures a program. No shell is between.
type NotifyCommand struct {
	Argv    []string      `json:"argv" jsonschema:"The program and its arguments. Required."`
	Timeout time.Duration `json:"timeout" jsonschema:"After it the program is killed."`
}

// SetDefaults gives the defaults of package notify.
func (n *Notify) SetDefaults() { fields.Adopt(n, notify.Defaults()) }

// SetDefaults bounds a request.
func (w *NotifyWebhook) SetDefaults() { w.Timeout = 10 * time.Second }

// SetDefaults bounds a run.
func (c *NotifyCommand) SetDefaults() { c.Timeout = 10 * time.Second }

func (n *Notify) check(r *findings.Report, path string) {
	if n == nil {
		return
	}
	r.Check(n.Webhook != nil || n.Command != nil, path, "neither webhook nor command is given, so nobody would be told")
	if w := n.Webhook; w != nil {
		at := path + ".webhook"
		complaint := notifyURL(w.URL.Text())
		r.Check(complaint == "" || r.Faulty(at+".url_file"), at+".url", "%s", complaint)
	}
	if c := n.Command; c != nil {
		at := path + ".command.argv"
		if len(c.Argv) == 0 || c.Argv[0] == "" {
			r.Check(false, at, "not given; name the program and its arguments, such as [/usr/local/bin/page, --team, orders]")
			return
		}
		_, err := exec.LookPath(c.Argv[0])
		r.Check(err == nil, at, "the program can't be run: %v", err)
	}
}

// notifyURL checks the form of a URL. The complaint never repeats any of it.
func notifyURL(text string) string {
	if text == "" {
		return "not given; set it, or url_file"
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "not a URL such as https://hooks.slack.com/services/..."
	}
	return ""
}
