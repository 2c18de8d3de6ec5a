package admin

import (
	"encoding/json"
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/route"
)

// Settings are the parts of a destination's configuration that relays write to the database
// (polling.SnapshotConfig.Settings). Everything that judges or explains a destination reads them there.
type Settings struct {
	// Selects says which messages the destination wants; nil: it isn't known, so it may want any.
	Selects *route.Filter `json:"selects,omitempty"`

	// Drops means that rules leave some of them out.
	Drops bool `json:"drops,omitempty"`

	// Rate is how many messages a second are published at most; 0: no bound.
	Rate float64 `json:"rate,omitempty"`
}

// ParseSettings reads settings as the database has them.
func ParseSettings(text string) (s Settings, err error) {
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return s, fmt.Errorf("read the settings of a destination: %w", err)
	}
	return s, nil
}

// Filters reports whether the destination is known to leave messages out.
func (s *Settings) Filters() bool {
	return s.Selects != nil && len(s.Selects.Topics)+len(s.Selects.Any) > 0
}

// Wants reports whether the destination selects a message. If its selection isn't known, it may: true.
func (s *Settings) Wants(m *outbox.Message) bool { return s.Selects == nil || s.Selects.Wants(m) }

// ByHeaders reports whether headers decide.
func (s *Settings) ByHeaders() bool {
	if s.Selects != nil {
		for i := range s.Selects.Any {
			if s.Selects.Any[i].Header != "" {
				return true
			}
		}
	}
	return false
}
