"""What every HTML report shares: the style sheet, and figures that follow the page's colours."""
