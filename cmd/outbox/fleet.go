package main

import "github.com/spf13/cobra"

func (a *app) fleetCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "fleet",
		Short: "Show who has what in a fleet, and plan its databases",
	}, a.fleetPlanCommand(), a.fleetPartsCommand(), a.fleetMovesCommand())
	a.fleetOverview(cmd)
	return cmd
}
