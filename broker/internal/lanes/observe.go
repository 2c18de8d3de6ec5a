package lanes

import (
	"log/slog"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
)

// settle reports an outcome to the broker, and then to the observer.
func (e *Engine) settle(d *Delivery, o consume.Outcome, pause time.Duration) {
	outcome := o
	if o == consume.Parked {
		outcome = consume.Done
	}
	if err := d.Settle(outcome, pause); err != nil {
		e.log(slog.LevelDebug, "the server was not told about a message, and will deliver it again", d, err)
	}
	e.cfg.Observer.Settled(&d.Message, o)
}

// Observed reports whether there is an observer, so that asking the broker is worth it.
func (e *Engine) Observed() bool {
	_, no := e.cfg.Observer.(nobody)
	return !no
}

// Lag reports to the observer how many messages of a source are not done.
func (e *Engine) Lag(source string, messages int64) { e.cfg.Observer.Lag(source, max(messages, 0)) }

type nobody struct{}

var _ consume.Observer = nobody{}

func (nobody) Received(*outbox.Message)                 {}
func (nobody) Handled(consume.Attempt)                  {}
func (nobody) Settled(*outbox.Message, consume.Outcome) {}
func (nobody) Lag(string, int64)                        {}
