package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/schema"
)

// Target is what a control applies to: a destination, or of it one topic, one key, or one key within one topic.
type Target struct {
	Destination string `json:"destination"`
	Topic       string `json:"topic,omitempty"`
	Key         string `json:"key,omitempty"` // the ordering key
}

func (t Target) String() string {
	switch {
	case t.Topic != "" && t.Key != "":
		return fmt.Sprintf("key %q of topic %q of %s", t.Key, t.Topic, t.Destination)
	case t.Topic != "":
		return fmt.Sprintf("topic %q of %s", t.Topic, t.Destination)
	case t.Key != "":
		return fmt.Sprintf("key %q of %s", t.Key, t.Destination)
	}
	return t.Destination
}

// Arguments returns the arguments of the command line that name the target.
func (t Target) Arguments() string {
	text := shell.Word(t.Destination)
	if t.Topic != "" {
		text += " --topic " + shell.Word(t.Topic)
	}
	if t.Key != "" {
		text += " --key " + shell.Word(t.Key)
	}
	return text
}

// Control is an operator's order to a destination: a pause, or a limit of its rate.
type Control struct {
	Target
	Rate   float64   `json:"rate,omitempty"` // messages a second at most; 0 is a pause
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // zero: until somebody ends it
	Actor  string    `json:"actor"`
	Reason string    `json:"reason,omitempty"`
}

// ControlOptions tune [Pause] and [Throttle].
type ControlOptions struct {
	// For is how long it lasts by itself; 0: until somebody ends it.
	For time.Duration

	// Unseen allows a destination that no relay has worked on yet, or may not say so in outbox.tables.
	Unseen bool
}

// Pause keeps what the target names from being published, until [Resume] or the end of options.For. Relays obey within
// about a second; what is on its way arrives. The messages are kept: those of a topic or a key as holds, with no
// attempt counted, those of a whole destination where they are, so that their segments can't be emptied. A pause that
// is there already is replaced. A destination that no relay is known to have worked on is an ErrNotFound unless options
// allow it.
func Pause(ctx context.Context, db DB, target Target, options ControlOptions, action Action) (Control, error) {
	c, err := control(ctx, db, "pause", Control{Target: target}, options, action)
	if err != nil {
		return c, fmt.Errorf("pause %v: %w", target, err)
	}
	return c, nil
}

// Throttle bounds what relays publish to a destination together, to rate messages a second, until it is called with 0
// or the end of options.For. Each shard group has an equal part. It bounds no relay to more than its configuration
// does. Errors are those of Pause.
func Throttle(ctx context.Context, db DB, destination string, rate float64, options ControlOptions, action Action) (c Control, err error) {
	target := Target{Destination: destination}
	switch {
	case rate < 0:
		err = fmt.Errorf("a rate of %v: it can't be negative", rate)
	case rate > 0:
		c, err = control(ctx, db, "throttle", Control{Target: target, Rate: rate}, options, action)
	default:
		c.Target = target
		_, err = end(ctx, db, "throttle", `destination = $1 AND rate IS NOT NULL AND $2 || $3 = ''`, target, action)
	}
	if err != nil {
		return c, fmt.Errorf("throttle %s: %w", destination, err)
	}
	return c, nil
}

// Resume ends the pause of the target, or with all every pause of its destination. It returns what it has ended. If
// that is nothing, it is an ErrNotFound, which names what is paused.
func Resume(ctx context.Context, db DB, target Target, all bool, action Action) ([]Control, error) {
	where := `destination = $1 AND topic = $2 AND lane = $3 AND rate IS NULL`
	if all {
		if target.Topic != "" || target.Key != "" {
			return nil, errors.New("resume: all pauses of a destination are ended, or that of a topic or key: not both")
		}
		where = `destination = $1 AND rate IS NULL AND $2 || $3 = ''`
	}
	ended, err := end(ctx, db, "resume", where, target, action)
	if err != nil {
		return nil, fmt.Errorf("resume %v: %w", target, err)
	}
	return ended, nil
}

// Controls lists what is asked of a destination now, or of all if the name is empty.
func Controls(ctx context.Context, db DB, destination string) (list []Control, err error) {
	err = Read(ctx, db, func(tx pgx.Tx) error {
		list, err = ReadControls(ctx, tx, destination)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the controls: %w", err)
	}
	return list, nil
}

const controlColumns = `destination, topic, lane, coalesce(rate, 0), at, nullif(until, 'infinity'), actor, coalesce(reason, '')`

// ReadControls reads what is asked of a destination now, or of all if the name is empty.
func ReadControls(ctx context.Context, tx pgx.Tx, destination string) ([]Control, error) {
	rows, err := tx.Query(ctx, `SELECT `+controlColumns+` FROM outbox.controls
		WHERE ($1 = '' OR destination = $1) AND until > clock_timestamp() ORDER BY destination, rate IS NOT NULL, topic, lane`, destination)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanControl)
}

func scanControl(row pgx.CollectableRow) (c Control, err error) {
	var until *time.Time
	err = row.Scan(&c.Destination, &c.Topic, &c.Key, &c.Rate, &c.Since, &until, &c.Actor, &c.Reason)
	c.Until = Value(until)
	return c, err
}

// Lane returns the lane of the target's key, "" for all keys.
func (t Target) Lane() string {
	if t.Key == "" {
		return ""
	}
	return schema.LaneOf(t.Key)
}

// control writes c.
func control(ctx context.Context, db DB, verb string, c Control, options ControlOptions, action Action) (Control, error) {
	if c.Destination == "" {
		return c, errors.New("no destination is named")
	}
	if options.For < 0 {
		return c, fmt.Errorf("for %v: it can't be negative", options.For)
	}
	err := Write(ctx, db, action, func(tx pgx.Tx) error {
		if !options.Unseen {
			if err := SeenDestination(ctx, tx, c.Destination); err != nil {
				return err
			}
		}
		// It is as good a time as any to forget what has ended.
		if _, err := tx.Exec(ctx, `DELETE FROM outbox.controls WHERE until <= clock_timestamp()`); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			INSERT INTO outbox.controls (destination, topic, lane, rate, until, actor, reason)
			VALUES ($1, $2, $3, nullif($4, 0::double precision),
			        CASE WHEN $5::bigint = 0 THEN 'infinity' ELSE clock_timestamp() + $5 * interval '1 microsecond' END, $6, nullif($7, ''))
			ON CONFLICT (destination, topic, lane, (rate IS NULL)) DO UPDATE SET
				rate = excluded.rate, until = excluded.until, actor = excluded.actor, reason = excluded.reason, at = excluded.at
			RETURNING `+controlColumns,
			c.Destination, c.Topic, c.Lane(), c.Rate, options.For.Microseconds(), schema.Storable(tx.Conn(),
				action.Actor), schema.Storable(tx.Conn(), action.Reason))
		if err != nil {
			return err
		}
		if c, err = pgx.CollectExactlyOneRow(rows, scanControl); err != nil {
			return err
		}
		// A relay that rests doesn't look for controls until something calls it.
		if _, err := tx.Exec(ctx, `SELECT pg_notify('outbox_wake', '')`); err != nil {
			return err
		}
		detail := map[string]any{"target": c.Target}
		if c.Rate > 0 {
			detail["rate"] = c.Rate
		}
		if !c.Until.IsZero() {
			detail["until"] = c.Until
		}
		return Record(ctx, tx, action, verb, c.Destination, detail)
	})
	return c, err
}

// end deletes the controls of a target that where names.
func end(ctx context.Context, db DB, verb, where string, target Target, action Action) (ended []Control, err error) {
	err = Write(ctx, db, action, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `DELETE FROM outbox.controls WHERE `+where+` AND until > clock_timestamp() RETURNING `+controlColumns,
			target.Destination, target.Topic, target.Lane())
		if err != nil {
			return err
		}
		if ended, err = pgx.CollectRows(rows, scanControl); err != nil {
			return err
		}
		if len(ended) == 0 {
			return nothingToEnd(ctx, tx, target)
		}
		return Record(ctx, tx, action, verb, target.Destination, map[string]any{"ended": ended})
	})
	return ended, err
}

// nothingToEnd returns an ErrNotFound that names the pauses there are.
func nothingToEnd(ctx context.Context, tx pgx.Tx, target Target) error {
	list, err := ReadControls(ctx, tx, target.Destination)
	if err != nil {
		return err
	}
	var others []string
	for _, c := range list {
		if c.Rate > 0 {
			others = append(others, fmt.Sprintf("a bound of %v messages a second, which ends by: "+
				"outbox throttle %s --rate 0", c.Rate, shell.Word(c.Destination)))
		} else {
			others = append(others, fmt.Sprintf("the pause of %v, which ends by: outbox resume %s", c.Target, c.Arguments()))
		}
	}
	if len(others) == 0 {
		return fmt.Errorf("%w: nothing is paused or throttled there", ErrNotFound)
	}
	return fmt.Errorf("%w: there is only %s", ErrNotFound, strings.Join(others, "; "))
}

// SeenDestination returns an ErrNotFound for a destination that no relay has worked on.
func SeenDestination(ctx context.Context, tx pgx.Tx, name string) error {
	rows, err := tx.Query(ctx, `SELECT destination FROM outbox.cursors UNION SELECT destination FROM outbox.tables ORDER BY 1`)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if slices.Contains(names, name) {
		return nil
	}
	return fmt.Errorf("%w: no relay has delivered to %q here, but to: %s. If it is still to come, add --unseen",
		ErrNotFound, name, cmp.Or(strings.Join(names, ", "), "none"))
}
