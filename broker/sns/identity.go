package sns

import (
	"context"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/broker/internal/amazon"
)

// Accounts returns the accounts in the topics' ARNs. It sends no request.
func (s *service) Accounts(context.Context) (accounts []amazon.Account, err error) {
	for _, arn := range s.names.All() {
		parts := strings.Split(arn, ":") // arn:aws:sns:region:account:name
		if len(parts) < 6 {
			continue
		}
		if a := (amazon.Account{ID: parts[4], Region: parts[3]}); !slices.Contains(accounts, a) {
			accounts = append(accounts, a)
		}
	}
	return accounts, nil
}
