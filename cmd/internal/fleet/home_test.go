package fleet

import (
	"slices"
	"time"
)

// home is the database in which members know each other, as its runtime has to use it: each write has its condition.
type home struct {
	now     time.Time
	records []Record
}

func (h *home) record(instance string) *Record {
	if i := slices.IndexFunc(h.records, func(r Record) bool { return r.Instance == instance }); i >= 0 {
		return &h.records[i]
	}
	return nil
}

// read returns what a process sees.
func (h *home) read() View {
	return View{Readable: true, Now: h.now, Records: slices.Clone(h.records)}
}

// write does what a step of a process says, and reports whether something has changed.
func (h *home) write(cfg Config, step Step) (changed bool) {
	if step.Join {
		changed = true
		if own := h.record(cfg.Instance); own != nil {
			own.Left, own.Leaving, own.Alive = time.Time{}, false, true
		} else {
			h.records = append(h.records, Record{Name: cfg.Name, Instance: cfg.Instance, Ordinal: Spare, Weight: cfg.Weight,
				Version: Version, Joined: h.now, Alive: true})
		}
	}
	if own := h.record(cfg.Instance); step.Leave && own != nil && !own.Leaving {
		own.Leaving, own.Left, changed = true, h.now, true
	}
	if step.Claim != nil {
		changed = h.claim(cfg.Instance, *step.Claim) || changed
	}
	for _, instance := range step.Dead {
		if r := h.record(instance); r != nil && !r.Alive && r.Left.IsZero() {
			r.Left, changed = h.now, true
		}
	}
	for _, instance := range step.Forget {
		if r := h.record(instance); r != nil && !r.Alive {
			h.records, changed = slices.DeleteFunc(h.records, func(r Record) bool { return r.Instance == instance }), true
		}
	}
	return changed
}

func (h *home) claim(instance string, claim Claim) bool {
	own := h.record(instance)
	holder := slices.IndexFunc(h.records, func(r Record) bool { return r.Ordinal == claim.Ordinal })
	if own == nil || own.Ordinal != Spare || holder < 0 && claim.From != "" {
		return false
	}
	if holder >= 0 {
		from := &h.records[holder]
		if from.Instance != claim.From || from.Alive && !from.Leaving {
			return false
		}
		from.Ordinal = Spare
	}
	own.Ordinal = claim.Ordinal
	return true
}
