package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/shell"
)

// unreadable returns the reason why the outbox's tables can't be read: a lock, or a right that a relay lacks.
func (r *Report) unreadable() (Finding, bool) {
	if len(r.Holders) > 0 {
		return r.holderFinding(r.Holders[0]), true
	}
	for _, relay := range r.Relays {
		if len(relay.Lacks) > 0 {
			return relay.rightsFinding(), true
		}
	}
	return Finding{}, false
}

// holderFinding names a transaction that has locked what relays need.
func (r *Report) holderFinding(h Holder) Finding {
	f := Finding{State: StateBroken, Since: h.Since, Cause: h.describe(r.At) + " has locked what the relay needs",
		Advice: h.advice()}
	if len(r.Holders) > 1 {
		f.Cause += fmt.Sprintf(", and %d more", len(r.Holders)-1)
	}
	return f
}

// waitsForLock finds a transaction that has locked what the group's relay needs.
func waitsForLock(r *Report, _ *Destination, g *Group) (Finding, bool) {
	for _, h := range r.Holders {
		// A relay that could not renew its lease has lost it, and is between two attempts.
		lost := h.Cursors && !g.Live && h.Since.Before(g.LeaseUntil)
		if r.unread != "" || lost || slices.Contains(h.Relays, g.Owner) {
			return r.holderFinding(h), true
		}
	}
	return Finding{}, false
}

// lacksRights reads the catalogue: a relay without rights can't report that itself.
func lacksRights(r *Report, d *Destination, g *Group) (Finding, bool) {
	for _, relay := range r.Relays {
		if len(relay.Lacks) > 0 && d.Table == nil && (r.unread != "" || relay.Name == g.Owner) {
			return relay.rightsFinding(), true
		}
	}
	return Finding{}, false
}

// rightsFinding names the rights that the relay's role lacks.
func (relay Relay) rightsFinding() Finding {
	lacks := strings.Join(relay.Lacks[:min(3, len(relay.Lacks))], ", ")
	if more := len(relay.Lacks) - 3; more > 0 {
		lacks += fmt.Sprintf(" and %d more", more)
	}
	return Finding{State: StateBroken, Cause: fmt.Sprintf("the role %s of %s lacks %s", relay.User, relay.Name, lacks),
		Advice: "as the owner of the schema", Next: "outbox migrate grants --apply --relay " + shell.Word(relay.User)}
}

// clockApart is the difference between two clocks from which on one of them must be wrong.
const clockApart = time.Minute

func clockOff(r *Report, d *Destination) (Finding, bool) {
	for _, relay := range r.Relays {
		if !relay.Live || relay.ClockAhead.Abs() < clockApart ||
			!slices.ContainsFunc(d.Groups, func(g Group) bool { return g.Owner == relay.Name }) {
			continue
		}
		side := "ahead of"
		if relay.ClockAhead < 0 {
			side = "behind"
		}
		return Finding{State: StateAtRisk, Cause: fmt.Sprintf("the clock of %s on host %s is %s %s the database's", relay.Name, relay.Host,
			printed.Span(relay.ClockAhead.Abs()), side),
			Advice: "find out which of both is wrong, and have it set by NTP; order and leases don't depend on it, but " +
				"logins, signatures, " +
				"certificates, delivery times and ages do. On the machine that is wrong", Next: "timedatectl set-ntp true"}, true
	}
	return Finding{}, false
}

func unindexed(r *Report, d *Destination) (Finding, bool) {
	if d.Table != nil || len(r.Unindexed) == 0 {
		return Finding{}, false
	}
	return Finding{State: StateAtRisk, Cause: "an index of the outbox is missing or not valid, and relays read whole tables instead",
		Advice: "as the owner of the schema run: " + strings.Join(r.Unindexed, "; ") + "; writers wait meanwhile"}, true
}

func slotKeeps(_ *Report, d *Destination) (Finding, bool) {
	if d.Slot == nil || d.Slot.Status != "extended" && d.Slot.Status != "unreserved" {
		return Finding{}, false
	}
	text := "more than max_wal_size"
	if d.Slot.Status == "unreserved" {
		text = "and the server will give it up soon"
	} else if d.Slot.Left != nil {
		text = fmt.Sprintf("and gives it up when %s more are written (max_slot_wal_keep_size)", printed.Bytes(max(*d.Slot.Left, 0)))
	}
	lost := "it is read from the table if the slot is lost"
	if d.Table != nil {
		lost = "what it has not read is lost with the slot"
	}
	return Finding{State: StateAtRisk, Cause: fmt.Sprintf("the server keeps %s of its log for slot %s, %s",
		printed.Bytes(d.Slot.Kept), d.Slot.Name, text),
		Advice: "have the destination deliver again; " + lost + ". If the relay is healthy, look at who else writes that much"}, true
}
