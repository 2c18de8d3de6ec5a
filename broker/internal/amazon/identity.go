package amazon

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
)

// Identity returns the accounts that messages go to, each with its region. Emulators all have the same account, and are
// known by their address.
func (b *Broker) Identity(ctx context.Context) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.settings.Timeout)
	defer cancel()
	if err := b.usable(); err != nil {
		return nil, err
	}
	accounts, err := b.service.Accounts(ctx)
	if err != nil {
		return nil, outbox.Unavailable(err)
	}
	for _, a := range accounts {
		name := fmt.Sprintf("%s account %s, region %s", b.settings.Service, a.ID, a.Region)
		if strings.Trim(a.ID, "0") == "" {
			name += ", " + b.settings.Endpoint
		}
		names = append(names, name)
	}
	return names, nil
}

// Account owns queues or topics.
type Account struct{ ID, Region string }
